//! Python's view of roles that follow the load.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

use crate::load::Load;
use crate::py_cost::Scorer;
use crate::py_shared::value_error;
use crate::roles::{Controller, Demand, Move, Role, Settings};

/// Roles of a text, a letter each: p, d, m.
pub fn roles_of(text: &str) -> PyResult<Vec<Role>> {
    let role = |letter: char| match letter {
        'p' => Ok(Role::Prefill),
        'd' => Ok(Role::Decode),
        'm' => Ok(Role::Mixed),
        _ => Err(value_error(format!("a role is p, d or m, not `{letter}`"))),
    };
    text.chars().map(role).collect()
}

pub fn text_of(roles: &[Role]) -> String {
    roles.iter().map(|role| role.letter()).collect()
}

/// (place, role it had, role it gets, pressure before, pressure predicted).
pub type Moved = (usize, &'static str, &'static str, f64, f64);

pub fn moved(it: &Move) -> Moved {
    (it.place, it.from.name(), it.to.name(), it.before, it.after)
}

/// Decides which engines of a team prefill, answer, or do both: see `roles.rs`. One process has one.
#[pyclass(frozen, module = "native._core")]
pub struct RoleControl {
    inner: Mutex<Controller>,
}

impl RoleControl {
    fn lock(&self) -> MutexGuard<'_, Controller> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl RoleControl {
    /// `roles`: p, d or m per engine, as they begin; `movable`: one byte each, 0 = it stays what it is.
    /// ValueError for what cannot be: SLOs or times of zero, no engine for one of both kinds of work.
    #[new]
    #[pyo3(signature = (roles, movable, *, ttft_slo_ms, tpot_slo_ms, dwell_s=60.0, drain_s=120.0))]
    fn new(
        roles: &str,
        movable: &[u8],
        ttft_slo_ms: f64,
        tpot_slo_ms: f64,
        dwell_s: f64,
        drain_s: f64,
    ) -> PyResult<Self> {
        let settings = Settings { ttft_slo_ms, tpot_slo_ms, dwell_s, drain_s };
        let movable = movable.iter().map(|&may| may != 0).collect();
        let inner = Controller::new(settings, roles_of(roles)?, movable).map_err(value_error)?;
        Ok(Self { inner: Mutex::new(inner) })
    }

    /// A letter per engine.
    #[getter]
    fn roles(&self) -> String {
        text_of(self.lock().roles())
    }

    /// Engines that were not rid of their old work in time.
    #[getter]
    fn stuck(&self) -> u64 {
        self.lock().stuck
    }

    /// Looks at the load of a team; `rate`: prompts per second of late. (place, role it had, role it
    /// gets, pressure before, pressure predicted) of the engine that moves, None where none does.
    fn look(&self, scorer: &Scorer, rate: f64, now: f64) -> PyResult<Option<Moved>> {
        let (loads, demand) = self.seen(scorer, rate, now)?;
        let fit = scorer.team().seats[0].engine.fit;
        Ok(self.lock().look(&loads, &demand, &fit, now).as_ref().map(moved))
    }

    /// The pressure of the roles as they are: above 1, an SLO is predicted to be missed.
    fn pressure(&self, scorer: &Scorer, rate: f64, now: f64) -> PyResult<f64> {
        let (_, demand) = self.seen(scorer, rate, now)?;
        Ok(self.lock().pressure(&demand, &scorer.team().seats[0].engine.fit))
    }

    /// Somebody sets a role (p, d, m), whatever the load. ValueError for an engine that may not have it.
    fn set(&self, place: usize, role: &str, now: f64) -> PyResult<()> {
        match roles_of(role)?[..] {
            [role] => self.lock().set(place, role, now).map_err(value_error),
            _ => Err(value_error(format!("one role is needed, got `{role}`"))),
        }
    }
}

impl RoleControl {
    fn seen(&self, scorer: &Scorer, rate: f64, now: f64) -> PyResult<(Vec<Load>, Demand)> {
        let loads = scorer.team().loads(now);
        let wanted = self.lock().roles().len();
        if loads.len() != wanted || wanted == 0 {
            let text = format!("roles of {wanted} engines, a scorer of {}", loads.len());
            return Err(value_error(text));
        }
        let demand = Demand::of(&loads, rate);
        Ok((loads, demand))
    }
}
