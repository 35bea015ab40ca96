"""What people read: Markdown, HTML, plots."""
