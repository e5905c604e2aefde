//! Discrete-event simulation of engines behind the gateway.

pub mod baselines;
pub mod cache;
pub mod engine;
pub mod gate;
pub mod run;
pub mod trace;
