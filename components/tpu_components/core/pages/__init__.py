"""Reports for people: blocks of content, their rendering as HTML, terminal text and Markdown, and formatted metrics."""
