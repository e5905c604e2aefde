//! The link over which an engine gets KV that another one computed.
//!
//! ```text
//! transfer_ms = latency + tokens × bytes per token / bandwidth
//! ```
//!
//! Transfers to one engine share its link, so that one waits for those before it. The bandwidth that is
//! configured is a start: a `Factor` learns from transfers that were seen how far it is off.

/// What a link is taken for that nothing is said of: 100 Gbit/s, which RDMA comes near to.
pub const GB_S: f64 = 12.5;
/// A handshake that was made before, a notification, and the requests between: ms.
pub const LATENCY_MS: f64 = 2.0;

/// The way of KV to an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    pub latency_ms: f64,
    pub token_ms: f64,
}

impl Link {
    /// `gb_s` in 10^9 bytes per second. An error names what cannot be.
    pub fn of(kv_bytes_per_token: u64, gb_s: f64, latency_ms: f64) -> Result<Self, String> {
        for (name, value, least) in [("bandwidth", gb_s, 1e-6), ("latency", latency_ms, 0.0)] {
            if !(least..=1e6).contains(&value) {
                return Err(format!("a link's {name} must be from {least} to 1e6, got {value}"));
            }
        }
        Ok(Self { latency_ms, token_ms: kv_bytes_per_token as f64 / (gb_s * 1e6) })
    }

    /// Of this many tokens, once it begins.
    #[inline]
    pub fn transfer_ms(&self, tokens: f64) -> f64 {
        self.latency_ms + tokens * self.token_ms
    }

    /// The same link, slower by a factor.
    pub fn scaled(&self, factor: f64) -> Self {
        Self { latency_ms: self.latency_ms, token_ms: self.token_ms * factor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_takes_its_bytes_over_the_bandwidth() {
        // 8192 tokens of a 70B model are 2.68 GB: 215 ms over 100 Gbit/s, 54 ms over 400.
        let link = Link::of(327_680, 12.5, 2.0).unwrap();
        assert!((link.transfer_ms(8192.0) - 216.7).abs() < 0.1);
        let fast = Link::of(327_680, 50.0, 2.0).unwrap();
        assert!((fast.transfer_ms(8192.0) - 55.7).abs() < 0.1);
        assert!((link.scaled(2.0).transfer_ms(8192.0) - 431.5).abs() < 0.1);
        assert_eq!(link.transfer_ms(0.0), 2.0);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        assert!(Link::of(1, 0.0, 1.0).unwrap_err().contains("bandwidth"));
        assert!(Link::of(1, 1.0, f64::NAN).unwrap_err().contains("latency"));
    }
}
