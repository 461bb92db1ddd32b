"""CSV files as spreadsheet programs save them: what separates the values, and what columns are usually called."""

from collections.abc import Sequence

DELIMITERS = {";": "';'", "\t": "tabs", "|": "'|'"}  # Beside the comma; with how they are called.
ALIASES = {
    "path": ("path", "filename", "file_name", "file", "filepath", "file_path", "image", "image_path"),
    "text": ("text", "review", "sentence", "comment", "content", "message"),
    "label": ("label", "class", "category", "sentiment", "target"),
}


def find_delimiter(text: str) -> str:
    r"""Find what separates the values, by the first line: a comma if there is one.

    Example:
        >>> find_delimiter("review;sentiment\n"), find_delimiter("a,b;c\n")
        (';', ',')
    """
    header = text.partition("\n")[0]
    return "," if "," in header else next((delimiter for delimiter in DELIMITERS if delimiter in header), ",")


def find_column(name: str, columns: Sequence[str]) -> str:
    """Find the column of a name: itself, or the only one that is usually called so; else the name as it is.

    Example:
        >>> find_column("text", ["review", "stars"]), find_column("text", ["text", "review"])
        ('review', 'text')
    """
    alike = [column for column in columns if column.strip().lower() in ALIASES.get(name, ())]
    return alike[0] if name not in columns and len(alike) == 1 else name
