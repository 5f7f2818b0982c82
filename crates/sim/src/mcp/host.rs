//! The machine that the backend runs on: when it is there, and what happens to it.

use tokio::runtime::Runtime;

use bowline_env::Network as _;

use super::backend::SimBackend;
use super::ledger::CallLedger;
use crate::dice::Dice;
use crate::disk::Death;
use crate::net::{BACKEND, FIRST_NODE, MachineNet, SimNet, address};
use crate::oracle::Oracle;
use crate::trace::Trace;

/// What happens to a backend.
#[derive(Clone, Copy, Debug)]
pub enum BackendFault {
    Dies {
        death: Death,
        away_ms: u64,
    },
    /// It forgets its sessions, and goes on.
    Forgets,
    /// SIGSTOP, and SIGCONT later.
    Pauses {
        ms: u64,
    },
    /// Nothing passes between it and a node, which are counted from the first one.
    Parts {
        node: u8,
        ms: u64,
    },
}

impl BackendFault {
    pub fn draw(dice: &mut Dice, nodes: u8) -> BackendFault {
        let away_ms = dice.between(1, 3000);
        match dice.below(8) {
            0..4 => BackendFault::Dies { death: Death::Killed, away_ms },
            4 => BackendFault::Dies { death: Death::PowerCut, away_ms },
            5 => BackendFault::Forgets,
            6 => BackendFault::Pauses { ms: dice.between(100, 6000) },
            _ => BackendFault::Parts { node: dice.below(u64::from(nodes)) as u8, ms: dice.between(100, 5000) },
        }
    }
}

/// The machine, with the backend on it.
#[derive(Debug)]
pub struct BackendHost {
    pub ledger: CallLedger,
    backend: SimBackend,
    net: SimNet,
    trace: Trace,
    /// When the backend is started, if it does not run.
    starts_at: Option<u64>,
    /// It stands still until then.
    still_until: Option<u64>,
}

impl BackendHost {
    pub fn new(oracle: &Oracle, net: &SimNet, trace: &Trace, dice: Dice, is_stateless: bool) -> BackendHost {
        let ledger = CallLedger::new(oracle.clone());
        let backend = SimBackend::new(ledger.clone(), trace.clone(), dice, is_stateless);
        let (net, trace) = (net.clone(), trace.clone());
        BackendHost { ledger, backend, net, trace, starts_at: Some(0), still_until: None }
    }

    /// Starts what is to be started now, on the runtime of the world.
    pub fn tick(&mut self, now_ms: u64, runtime: &Runtime) {
        if self.still_until.is_some_and(|until| until <= now_ms) {
            self.still_until = None;
            self.backend.stand_still(false);
        }
        if self.starts_at.is_some_and(|at| at <= now_ms) {
            self.starts_at = None;
            self.trace.note("backend", "starts");
            self.net.machine_on(BACKEND);
            let (net, backend) = (MachineNet(self.net.clone(), BACKEND), self.backend.clone());
            runtime.spawn(async move {
                if let Ok(listener) = net.listen(address(BACKEND)).await {
                    backend.serve(listener).await;
                }
            });
        }
    }

    pub fn strike(&mut self, fault: BackendFault, now_ms: u64) {
        match fault {
            // Nothing happens to one that is away.
            _ if self.starts_at.is_some() => {}
            BackendFault::Dies { death, away_ms } => {
                self.trace.fault("backend dies", "backend", format_args!("{death:?}"));
                self.backend.die();
                self.still_until = None;
                self.net.machine_off(BACKEND, death);
                self.starts_at = Some(now_ms + away_ms);
            }
            BackendFault::Forgets => {
                self.trace.fault("backend forgets", "backend", "its sessions");
                self.backend.forget();
            }
            BackendFault::Pauses { ms } => {
                self.trace.fault("backend pauses", "backend", format_args!("{ms} ms"));
                self.backend.stand_still(true);
                self.still_until = Some(now_ms + ms);
            }
            BackendFault::Parts { node, ms } => self.net.part(FIRST_NODE + node, BACKEND, ms),
        }
    }

    /// The faults stop.
    pub fn calm_down(&mut self, now_ms: u64) {
        self.starts_at = self.starts_at.map(|at| at.min(now_ms));
        self.still_until = self.still_until.map(|until| until.min(now_ms));
    }
}
