//! Breakpoints that are set aside for a while: for a child that shares the memory, and that another tracer traces.

use crate::session::space::image::Image;
use crate::tracer::Result;

impl Image {
    /// Takes all int3s out of the code, as `child` is about to be let go in it. What others do meanwhile is not seen.
    ///
    /// # Errors
    /// If they can't be taken out. Then they are all there.
    pub fn set_aside_for(&mut self, child: i32) -> Result<()> {
        self.aside_for.insert(child);
        if let Err(error) = self.code.set_aside(&mut self.memory) {
            self.take_up_after(child)?;
            return Err(error);
        }
        Ok(())
    }

    /// Whether the int3s are set aside for `child`.
    pub fn is_aside_for(&self, child: i32) -> bool {
        self.aside_for.contains(&child)
    }

    /// Whether the int3s are set aside for `child` alone.
    pub fn is_last_aside(&self, child: i32) -> bool {
        self.aside_for.len() == 1 && self.is_aside_for(child)
    }

    /// `child` no longer shares the memory: unless they are set aside for another one, too, the int3s come back. Before
    /// that the table must have been brought up to date with the modules.
    ///
    /// # Errors
    /// If one can't be written.
    pub fn take_up_after(&mut self, child: i32) -> Result<()> {
        if !self.aside_for.remove(&child) || !self.aside_for.is_empty() {
            return Ok(());
        }
        self.code.take_up(&mut self.memory)
    }
}
