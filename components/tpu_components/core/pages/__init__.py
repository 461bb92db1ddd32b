"""Reports: blocks that are rendered as an HTML page, in a terminal or as Markdown; and formatted metrics."""
