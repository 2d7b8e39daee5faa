"""Say no before weights are read: checks of a launch, ours or another engine's."""
