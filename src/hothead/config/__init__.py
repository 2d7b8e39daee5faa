"""Every option, defined once: the field gives flag, help, YAML key, range check and documentation row."""
