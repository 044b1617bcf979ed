//! Models are built here message by message.

mod folding;
mod model;
mod operators;
mod recurrent;
mod slopes;
mod states;
mod structure;
mod training_info;
