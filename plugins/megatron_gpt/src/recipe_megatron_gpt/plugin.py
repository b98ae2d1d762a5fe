"""What this plugin adds. Start here."""
