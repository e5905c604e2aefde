//! Discrete-event simulation of engines behind the gateway.

pub mod announce;
pub mod baselines;
pub mod cache;
pub mod engine;
pub mod gate;
pub mod handoff;
pub mod options;
pub mod report;
pub mod reuse;
pub mod run;
pub mod store;
pub mod trace;

#[cfg(test)]
mod handoff_test;
#[cfg(test)]
mod sim_test;
