//! Looks an address up: the rule that leads to its caller, and the module and offset that name it.
//!
//! Invariant: the module is described in the slot's stream before the first frame that refers to it.

use super::Walk;
use crate::events::ring::{Ring, add};
use crate::stacks::native::arch;
use crate::stacks::native::cfi;
use crate::stacks::native::code_pages;
use crate::stacks::native::loading_objects;
use crate::stacks::native::modules;
use crate::stacks::native::rule::{KnownAddress, RuleKind, UnwindRule};

impl Walk {
    /// Finds the rule at an address and describes its module, if that was not done.
    #[cold]
    #[inline(never)]
    pub(super) fn learn(&mut self, address: usize, ring: &mut Ring) -> KnownAddress {
        add(&ring.slot().native_learned, 1);
        let mut known = match modules::at(address) {
            Some((number, module)) => {
                let end = if module.is_loader { RuleKind::Outermost } else { RuleKind::Unknown };
                let rule = cfi::rule(module.unwind_header(), |address| module.segment_end(address), address);
                let mut rule = rule.unwrap_or(UnwindRule { kind: end, ..UnwindRule::default() });
                if module.is_own && rule.kind == RuleKind::Called && !rule.cfa_is_read {
                    rule.kind = RuleKind::Own;
                }
                if self.describes(number.wrapping_add(1)) {
                    ring.define_module(&module.record());
                }
                KnownAddress { rule, module: module.id, offset: module.offset(address), ..KnownAddress::default() }
            }
            // Not kept where nothing is known: the page may get its place yet.
            None => match Self::learn_outside(address, ring) {
                Some(known) => known,
                None => return self.unknown(address, ring),
            },
        };
        if known.rule.kind == RuleKind::Unknown {
            known.rule = self.signal_rule(address).unwrap_or(known.rule);
        }
        self.rules.put(address, known);
        known
    }

    /// As [`Walk::learn`], of what is in no module: an object that is being loaded, or a page. Described every time: the
    /// same one may have gone by another id.
    fn learn_outside(address: usize, ring: &mut Ring) -> Option<KnownAddress> {
        if let Some(early) = loading_objects::at(address) {
            ring.define_module(&early.record());
            let object = &early.object;
            let rule = cfi::rule(object.unwind_header(), |address| object.segment_end(address), address);
            let (rule, module, offset) = (rule.unwrap_or_default(), early.id, early.offset(address));
            return Some(KnownAddress { rule, module, offset, ..KnownAddress::default() });
        }
        let page = code_pages::at(address)?;
        ring.define_module(&page.record());
        Some(KnownAddress { module: page.id, offset: page.offset(address), ..KnownAddress::default() })
    }

    /// The entry for an address in no known module.
    fn unknown(&mut self, address: usize, ring: &mut Ring) -> KnownAddress {
        let id = modules::unknown();
        if self.describes(0) {
            let nothing: &[u8] = &[];
            let module = memtrack_format::record::ModuleRecord {
                id,
                bias: 0,
                start: 0,
                end: 0,
                path: nothing,
                build_id: nothing,
            };
            ring.define_module(&module);
        }
        KnownAddress { rule: self.signal_rule(address).unwrap_or_default(), module: id, ..KnownAddress::default() }
    }

    /// How to leave the trampoline that a signal handler returns to behind this address, if it is one without a table.
    fn signal_rule(&mut self, address: usize) -> Option<UnwindRule> {
        arch::signal_rule(address.wrapping_add(1), &mut self.stack)
    }

    /// Whether the module with this number is to be described; it counts as described from now on.
    fn describes(&mut self, number: usize) -> bool {
        if !self.described.grow(number.wrapping_add(1)) {
            return true;
        }
        let is_new = self.described.get(number) == 0;
        self.described.set(number, 1);
        is_new
    }
}
