//! The script for rates broken on purpose.
