"""Accept or reject: the target's own choices, and which draft tokens equal them."""
