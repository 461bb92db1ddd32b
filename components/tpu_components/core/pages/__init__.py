"""Reports, made of blocks that are rendered as an HTML page, for a terminal or as Markdown, and formatted metrics."""
