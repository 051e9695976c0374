"""What commands print, and the codes with which they exit."""
