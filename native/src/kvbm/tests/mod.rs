//! Tests of the store as a whole. What belongs to one file is tested there.

mod arena;
mod capacity;
mod daemon;
mod drops;
mod faults;
mod harness;
mod host;
mod hostile;
mod lifecycle;
mod lookups;
mod media;
mod model;
mod places;
mod runs;
mod stragglers;
mod torture;
