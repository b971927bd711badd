//! The processor time that accounts may take.
//!
//! Invariant: what is spent beyond the part is bounded, so that on average the part holds.

/// The part of a processor's time that accounts may take.
const TIME_PART: u64 = 100;
/// Processor time that accounts of growth may take in addition, and that those may take that somebody asks for.
pub(super) const ALLOWANCE_NS: u64 = 5_000_000;
pub(super) const ASKED_ALLOWANCE_NS: u64 = 500_000_000;
/// How much more may have been spent before an account that is taken in debt.
const DEBT_NS: u64 = 50_000_000;

/// What the accounts of a process have taken.
#[derive(Debug, Default)]
pub(super) struct AccountBudget {
    spent_ns: u64,
    /// Processor time of the last account.
    last_cost_ns: u64,
}

impl AccountBudget {
    #[cfg(test)]
    pub(super) const fn spent(spent_ns: u64, last_cost_ns: u64) -> Self {
        Self { spent_ns, last_cost_ns }
    }

    /// An account took so much.
    pub(super) fn spend(&mut self, cost_ns: u64) {
        self.spent_ns = self.spent_ns.saturating_add(cost_ns);
        self.last_cost_ns = cost_ns;
    }

    /// Whether there is time for another one, with this allowance, in a process of this age.
    pub(super) fn is_within(&self, age_ns: u64, allowance_ns: u64) -> bool {
        self.spent_ns.saturating_add(self.last_cost_ns) <= age_ns / TIME_PART + allowance_ns
    }

    /// Whether another one may be taken in debt, whatever it takes.
    pub(super) fn may_owe(&self, age_ns: u64) -> bool {
        self.spent_ns <= age_ns / TIME_PART + ALLOWANCE_NS + DEBT_NS
    }
}
