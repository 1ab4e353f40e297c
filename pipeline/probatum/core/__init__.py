"""Pure code: values in, values out. Nothing here opens a file, starts a process or reads a clock."""
