"""Pages and text for people: their style, templates and escaping."""
