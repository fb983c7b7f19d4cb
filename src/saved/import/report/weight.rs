//! What the JSON of a report may become in memory, told before it is made.

use super::super::budget::{Budget, Exhausted};
use super::model::{FrameOf, ReportFinding, ReportStep};

/// What an item of a list takes: a text or a frame's number, in a list that grows, and a place in one that is made of
/// it.
const ITEM: usize = 2 * size_of::<String>() + size_of::<FrameOf>();

/// What the smallest possible object takes that becomes a large one, besides its fields: a finding has three at least.
const OBJECT: usize = {
    let finding = 2 * size_of::<ReportFinding>() - 3 * ITEM;
    let step = 2 * size_of::<ReportStep>();
    if finding > step { finding } else { step }
};

/// Takes from the budget what reading these bytes as a report takes at most: for each object and each value, and all
/// texts.
pub(super) fn take(bytes: &[u8], budget: &mut Budget) -> Result<(), Exhausted> {
    let (mut objects, mut items) = (0_usize, 0_usize);
    let (mut in_text, mut escaped) = (false, false);
    for byte in bytes {
        match (in_text, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_text = !in_text,
            (false, b'{') => objects += 1,
            (false, b',' | b'[') => items += 1,
            _ => {}
        }
    }
    budget.take(bytes.len())?;
    budget.take(objects.saturating_mul(OBJECT).saturating_add(items.saturating_mul(ITEM)))
}
