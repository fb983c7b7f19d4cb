//! The rules of frames by their return addresses, as the routine finds them: with these it walks on where a stack has
//! no node yet, and lists the return addresses that the tracer makes nodes of. It copies the stack only where a rule is
//! missing, too.

use super::layout::{RULE_AREA, RULE_FORM, RULE_GONE, RULE_RA, RULE_SIZE, RULES, rule_slot};
use super::nodes::{CallerRule, write_rule};
use super::shared::Shared;
use crate::base::addr::ModuleId;

/// Which rules are published. Only the tracer writes the table, while threads read it.
#[derive(Debug)]
pub struct Rules {
    /// The return address in each entry, and its module: what stands in the shared region, the program may have written
    /// over.
    entries: Vec<(u64, ModuleId)>,
    used: u64,
}

impl Default for Rules {
    /// None, in a region that holds zeros.
    fn default() -> Self {
        Self { entries: vec![(0, ModuleId::NONE); RULES as usize], used: 0 }
    }
}

impl Rules {
    /// Publishes how walks go on from the frame at `ra` in `module`, whatever stack it is on: to its caller, or nowhere
    /// as it is the outermost. Does nothing if a rule is known there, or half of the table is used: then stacks with
    /// that frame are copied.
    pub fn publish(&mut self, shared: &dyn Shared, ra: u64, module: ModuleId, onward: CallerRule) {
        if ra == 0 || ra == RULE_GONE || onward == CallerRule::Unknown || 2 * self.used >= RULES {
            return;
        }
        let mut slot = rule_slot(ra);
        loop {
            match self.entries.get_mut(slot as usize) {
                Some(entry) if entry.0 == 0 => {
                    *entry = (ra, module);
                    break;
                }
                Some(entry) if entry.0 != ra => slot = (slot + 1) % RULES,
                _ => return,
            }
        }
        self.used += 1;
        let at = RULE_AREA + slot * RULE_SIZE;
        write_rule(shared, at + RULE_FORM, onward);
        shared.set_word(at + RULE_RA, ra);
    }

    /// Forgets the rules at return addresses that lie in another module by now. Their entries are not used again: a
    /// thread may be reading one.
    pub fn forget(&mut self, shared: &dyn Shared, is_stale: &dyn Fn(u64, ModuleId) -> bool) {
        for (slot, (ra, module)) in (0..).zip(&mut self.entries) {
            if *ra != 0 && *ra != RULE_GONE && is_stale(*ra, *module) {
                *ra = RULE_GONE;
                shared.set_word(RULE_AREA + slot * RULE_SIZE + RULE_RA, RULE_GONE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Form;
    use super::super::shared::testing::Made;
    use super::*;

    const PLAIN: CallerRule = CallerRule::Caller { form: Form::Rsp, offset: 48, rbp: -2 };

    /// A look-up as the routine does it, from the region alone: where the rule stands.
    fn find(shared: &Made, ra: u64) -> Option<u64> {
        let mut slot = rule_slot(ra);
        loop {
            let at = RULE_AREA + slot * RULE_SIZE;
            match shared.word(at + RULE_RA) {
                0 => return None,
                found if found == ra => return Some(at),
                _ => slot = (slot + 1) % RULES,
            }
        }
    }

    #[test]
    fn each_rule_is_found_by_its_address() {
        let (shared, mut rules) = (Made::default(), Rules::default());
        let ra = |number: u64| 0x7f00_0000_0000 + number * 37;
        for number in 0..RULES {
            rules.publish(&shared, ra(number), ModuleId(1), PLAIN);
        }
        let found = (0..RULES).filter(|&number| find(&shared, ra(number)).is_some()).count() as u64;
        assert_eq!(found, RULES / 2, "a search must come to an end");
        let at = find(&shared, ra(7)).unwrap();
        assert_eq!(shared.half(at + RULE_FORM), Form::Rsp as u32 | 0xfffe << 16);
        assert_eq!(shared.half(at + RULE_FORM + 4), 48);
    }

    #[test]
    fn stale_rules_are_found_no_more() {
        let (shared, mut rules) = (Made::default(), Rules::default());
        (1..1000).for_each(|ra| rules.publish(&shared, ra, ModuleId(ra as u32 % 2), PLAIN));
        rules.publish(&shared, 5000, ModuleId(1), CallerRule::Unknown);
        rules.forget(&shared, &|_, module| module == ModuleId(0));
        for ra in 1..1000 {
            assert_eq!(find(&shared, ra).is_some(), ra % 2 == 1, "{ra}");
        }
        assert_eq!(find(&shared, 5000), None);
        rules.publish(&shared, 8, ModuleId(2), CallerRule::End(3));
        let at = find(&shared, 8).unwrap();
        assert_eq!(shared.half(at + RULE_FORM) as u8, Form::End as u8, "what is there now");
    }
}
