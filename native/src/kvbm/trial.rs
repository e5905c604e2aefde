//! A disk that answers nothing in time is not asked for a while.

/// Loads that time out one after the other until the disk is left alone.
const TIMEOUTS: u32 = 3;
const PAUSE_MIN_US: u64 = 1_000_000;
const PAUSE_MAX_US: u64 = 30_000_000;

#[derive(Debug, Clone, Copy, Default)]
pub struct Trial {
    timeouts: u32,
    pause_us: u64,
    until_us: u64,
}

impl Trial {
    /// Whether loads should be offered now.
    pub fn is_open(&self, now_us: u64) -> bool {
        now_us >= self.until_us
    }

    pub fn went_well(&mut self) {
        *self = Self::default();
    }

    pub fn timed_out(&mut self, now_us: u64) {
        self.timeouts += 1;
        if self.timeouts >= TIMEOUTS {
            self.pause_us = (self.pause_us * 2).clamp(PAUSE_MIN_US, PAUSE_MAX_US);
            self.until_us = now_us + self.pause_us;
            // After the pause one more that fails is enough.
            self.timeouts = TIMEOUTS - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_something_goes_well() {
        let mut trial = Trial::default();
        trial.timed_out(0);
        trial.timed_out(0);
        assert!(trial.is_open(0));
        trial.timed_out(0);
        assert!(!trial.is_open(PAUSE_MIN_US - 1) && trial.is_open(PAUSE_MIN_US));
        trial.timed_out(PAUSE_MIN_US);
        assert!(!trial.is_open(3 * PAUSE_MIN_US - 1) && trial.is_open(3 * PAUSE_MIN_US));
        trial.went_well();
        trial.timed_out(0);
        assert!(trial.is_open(0));
    }
}
