"""What happens beside the loop: tables, files, pictures."""
