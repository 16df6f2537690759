"""What makes other libraries know ljcompile."""
