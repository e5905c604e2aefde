//! Where in an engine a block may lie.

/// A set of tiers, in the low four bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tiers(pub u8);

impl Tiers {
    pub const NONE: Tiers = Tiers(0);
    pub const DEVICE: Tiers = Tiers(1);
    pub const HOST: Tiers = Tiers(2);
    pub const DISK: Tiers = Tiers(4);
    pub const REMOTE: Tiers = Tiers(8);
    pub const ALL: Tiers = Tiers(15);

    /// What an engine's own reset empties: its device, and its host memory, which it may empty with it
    /// and then does not say so. Disk and remote stores outlive resets.
    pub const VOLATILE: Tiers = Tiers(3);

    pub fn has(self, other: Tiers) -> bool {
        self.0 & other.0 != 0
    }

    pub fn and(self, other: Tiers) -> Tiers {
        Tiers(self.0 & other.0)
    }

    pub fn with(self, other: Tiers) -> Tiers {
        Tiers(self.0 | other.0)
    }

    pub fn without(self, other: Tiers) -> Tiers {
        Tiers(self.0 & !other.0)
    }

    /// The tier an event means by its `medium` and `locality`; None for a medium that is not known.
    ///
    /// vLLM 0.32 says GPU, CPU or STORAGE and, from secondary tiers, LOCAL or REMOTE; the other words
    /// are of earlier versions and of connectors. No medium is the device.
    pub fn of(medium: Option<&[u8]>, locality: Option<&[u8]>) -> Option<Tiers> {
        let tier = match medium {
            None => return Some(Tiers::DEVICE),
            Some(word) => Tiers::named(&word.to_ascii_uppercase())?,
        };
        match locality {
            Some(word) if word.eq_ignore_ascii_case(b"REMOTE") => Some(Tiers::REMOTE),
            _ => Some(tier),
        }
    }

    fn named(medium: &[u8]) -> Option<Tiers> {
        match medium {
            b"GPU" | b"DEVICE" | b"HBM" | b"XPU" | b"TPU" | b"NPU" => Some(Tiers::DEVICE),
            b"CPU" | b"HOST" | b"CPU_PINNED" | b"DRAM" | b"CPU_TIER1" => Some(Tiers::HOST),
            b"STORAGE" | b"DISK" | b"NVME" | b"SSD" | b"FS" | b"CPU_TIER2" => Some(Tiers::DISK),
            b"REMOTE" | b"EXTERNAL" | b"OBJ" | b"S3" | b"SHARED" => Some(Tiers::REMOTE),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_of_events_are_tiers() {
        let of = |medium: &str, locality: Option<&str>| {
            Tiers::of(Some(medium.as_bytes()), locality.map(str::as_bytes))
        };
        assert_eq!(Tiers::of(None, None), Some(Tiers::DEVICE));
        assert_eq!(of("GPU", None), Some(Tiers::DEVICE));
        assert_eq!(of("cpu", Some("LOCAL")), Some(Tiers::HOST));
        assert_eq!(of("STORAGE", Some("LOCAL")), Some(Tiers::DISK));
        assert_eq!(of("STORAGE", Some("REMOTE")), Some(Tiers::REMOTE));
        assert_eq!(of("TAPE", None), None);
        assert_eq!(of("", Some("REMOTE")), None);
    }
}
