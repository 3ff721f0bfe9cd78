"""Build time only: fences, figure links, runtime download, browser bundle, command line."""
