"""What people read: blocks, shown as a page, in a terminal or as Markdown, and figures in words."""
