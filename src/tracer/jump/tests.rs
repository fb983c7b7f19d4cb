mod undo;
mod walk;
