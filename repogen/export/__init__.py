"""Files for production, out of the manifest. Each module has `files(models, settings)`: relative path to text, pure."""
