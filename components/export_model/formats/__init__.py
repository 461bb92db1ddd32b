"""What an export is written as: a file for each format, and the table of them."""
