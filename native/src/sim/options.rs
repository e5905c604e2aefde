//! What a run is made with.

use super::engine::Settings;
use super::store::Shelf;
use crate::link::Link;

#[derive(Debug, Clone)]
pub struct Options {
    pub engines: usize,
    pub settings: Settings,
    /// Tokens of a step, where engines differ; empty = `settings`.
    pub chunks: Vec<u32>,
    /// Over which KV moves.
    pub link: Link,
    /// All engines share one endless cache: what routing can lose is bounded by this run.
    pub shared: bool,
    /// A store that all engines can load from.
    pub store: Option<Shelf>,
    pub speed: f64,
    /// Arrivals are spread over this time, as traces count in ticks.
    pub spread_s: f64,
    pub seed: u64,
    /// Gateways, which take turns.
    pub gateways: usize,
    /// How long after the fact the gateways hear of cached and removed blocks.
    pub delay_s: f64,
    /// Share of these events that never arrive.
    pub loss: f64,
}

impl Options {
    /// An error says what cannot be.
    pub fn check(&self) -> Result<(), String> {
        let counts = [
            ("engines", self.engines, 1, 4096),
            ("gateways", self.gateways, 1, 1024),
            ("chunk_tokens", self.settings.chunk as usize, 16, 1 << 20),
            ("max_seqs", self.settings.max_seqs, 1, 1 << 16),
        ];
        for (name, value, least, most) in counts {
            if !(least..=most).contains(&value) {
                return Err(format!("`{name}` must be from {least} to {most}, got {value}"));
            }
        }
        if !self.chunks.is_empty() && self.chunks.len() != self.engines {
            return Err(format!("{} engines, {} chunks", self.engines, self.chunks.len()));
        }
        let numbers = [
            ("speed", self.speed, 1e-3, 1e3),
            ("spread_s", self.spread_s, 0.0, 3600.0),
            ("delay_s", self.delay_s, 0.0, 3600.0),
            ("loss", self.loss, 0.0, 1.0),
        ];
        for (name, value, least, most) in numbers {
            if !(least..=most).contains(&value) {
                return Err(format!("`{name}` must be from {least} to {most}, got {value}"));
            }
        }
        Ok(())
    }

    /// An engine's own.
    pub(super) fn settings_of(&self, at: usize) -> Settings {
        let chunk = self.chunks.get(at).copied().unwrap_or(self.settings.chunk);
        Settings { chunk, ..self.settings }
    }
}
