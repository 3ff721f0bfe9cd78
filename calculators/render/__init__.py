"""Result to HTML and SVG text: the same code at build time and in the browser."""
