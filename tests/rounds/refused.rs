//! What is refused.
