//! How a history ends: the faults stop, all clients come to their end, and what they were told is held against what there is.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use super::{QUIET_MAX_MS, World};
use crate::client::SharedSession;
use crate::client::observer::ObservingClient;
use crate::client::repeater::RepeatingClient;
use crate::dice::Dice;
use crate::disk::{Death, Plan};
use crate::net::Weather;
use crate::oracle::LogEpochs;
use crate::redis::server::SimRedis;

impl World {
    /// The faults stop.
    pub(super) fn calm_down(&mut self) {
        self.trace.note("world", "is quiet from now on");
        self.faults.clear();
        self.net.set_weather(Weather::default());
        self.disk.plan(|plan| *plan = Plan::default());
        (self.full_until, self.slow_until) = (0, 0);
        for node in &mut self.nodes {
            node.boots_at = node.boots_at.min(self.now_ms);
            node.paused_until = node.paused_until.min(self.now_ms);
        }
        self.redis_at = self.redis_at.map(|at| at.min(self.now_ms));
        self.redis.iter().for_each(SimRedis::calm);
        self.backend.iter_mut().for_each(|backend| backend.calm_down(self.now_ms));
        self.clients.is_quiet.store(true, Ordering::Relaxed);
    }

    /// Liveness: every client comes to its end.
    pub(super) fn wait_for_clients(&mut self, otherwise: &str) -> anyhow::Result<()> {
        let until = self.now_ms + QUIET_MAX_MS;
        while !self.clients.left().is_empty() {
            if self.now_ms > until {
                for who in self.clients.left() {
                    self.oracle.violate(&who, format_args!("{otherwise} {QUIET_MAX_MS} ms after the faults stopped"));
                }
                break;
            }
            self.tick()?;
        }
        Ok(())
    }

    /// In half of the histories in which nothing was lost, the machine is started anew and each message is sent once more.
    pub(super) fn repeat(&mut self, sessions: &[SharedSession], dice: &Dice) -> anyhow::Result<()> {
        let mut dice = dice.fork(900);
        if self.oracle.has_losses() || dice.percent(50) {
            return Ok(());
        }
        self.trace.note("world", "starts the servers anew, and repeats what was said");
        for at in 0..self.nodes.len() {
            self.down(at, Death::Killed, 100);
        }
        {
            let _entered = self.runtime.enter();
            for (n, session) in sessions.iter().enumerate().filter(|(_, session)| session.id().is_some()) {
                let who = format!("repeater-{n}");
                self.clients.spawn(&who, RepeatingClient::new(&self.clients, session, &who, dice.fork(n as u64)).run());
            }
        }
        self.wait_for_clients("could not repeat what was said")
    }

    /// Reads every session once more from its start. Returns of which epochs each log consists, and how far each goes.
    pub(super) fn audit(&mut self, sessions: &[SharedSession], dice: &Dice) -> anyhow::Result<Vec<LogEpochs>> {
        let logs: Arc<Mutex<Vec<LogEpochs>>> = Arc::default();
        {
            let _entered = self.runtime.enter();
            for (n, session) in sessions.iter().enumerate().filter(|(_, session)| session.id().is_some()) {
                let who = format!("auditor-{n}");
                let auditor = ObservingClient::new(&self.clients, session, &who, dice.fork(1000 + n as u64));
                let logs = logs.clone();
                self.clients.spawn(&who, async move {
                    let log = auditor.audit().await;
                    logs.lock().unwrap_or_else(PoisonError::into_inner).push(log);
                });
            }
        }
        self.wait_for_clients("could not read its session")?;
        let logs = logs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(logs)
    }
}
