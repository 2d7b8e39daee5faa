"""Text to token counts: corpus files of any kind, chats, and counting with all cores. Read `counting.py` first."""
