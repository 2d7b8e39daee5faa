"""The command line: parse, call, print, exit code. Results go to stdout, progress and notes to stderr."""
