//! The cluster as sessions and tasks know it: which node writes what, and the way there.

use std::sync::Arc;

use async_trait::async_trait;
use bowline_actor::Router;
use bowline_protocol::{LogId, Principal, Refusal, SessionId, TaskId};
use bowline_store::{Fence, Holder, Leased, Lessor, StoreError};

use super::Cluster;
use crate::logs::{Location, Placement, PlacementLock};
use crate::session::actor::SessionActor;
use crate::session::{SessionCommand, SessionRequest};
use crate::task::TaskCommand;
use crate::task::actor::TaskActor;

#[derive(Debug)]
pub struct ClusterRouter(pub Arc<Cluster>);

#[async_trait]
impl Lessor for ClusterRouter {
    async fn lease(&self, log: &LogId) -> Result<Leased, StoreError> {
        self.0.lease(log).await
    }

    async fn give_back(&self, log: &LogId, fence: Fence) {
        if let Err(error) = self.0.store.give_back(log, &self.0.name, fence).await {
            // Until then others ask here for it.
            tracing::debug!(%log, %error, "a lease could not be given back; this node will try again");
            self.0.give_back_later(log, fence);
        }
    }
}

#[async_trait]
impl Placement for ClusterRouter {
    async fn locate(&self, log: &LogId) -> Result<Location, StoreError> {
        self.0.place(log).await
    }

    async fn lock(&self, name: &LogId) -> Result<Option<Box<dyn PlacementLock>>, Refusal> {
        let lock = self.0.lock(name).await?;
        Ok(Some(Box::new(lock)))
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn has_peers(&self) -> bool {
        self.0.has_peers()
    }
}

impl Router<SessionActor> for ClusterRouter {
    fn route(&self, id: &SessionId, asker: &Principal) -> Option<Holder> {
        self.0.route(id, asker)
    }

    fn forward(
        &self,
        node: &Holder,
        id: &SessionId,
        asker: &Principal,
        command: Box<SessionCommand>,
    ) -> Result<(), (Box<SessionCommand>, Refusal)> {
        // A claim goes by the name under which it was made, also if the actor has another by now.
        let id = match &command.ask {
            SessionRequest::Attach(request) => request.session.clone(),
            _ => id.clone(),
        };
        self.0.forward(node, &id, asker, *command)
    }

    fn pass_on_work(&self, id: &SessionId, owner: &Principal) {
        self.0.pass_on_work(id, owner);
    }
}

impl Router<TaskActor> for ClusterRouter {
    fn route(&self, _id: &TaskId, _asker: &Principal) -> Option<Holder> {
        None
    }

    fn forward(
        &self,
        node: &Holder,
        id: &TaskId,
        asker: &Principal,
        command: Box<TaskCommand>,
    ) -> Result<(), (Box<TaskCommand>, Refusal)> {
        self.0.forward_task(node, id, asker, command)
    }

    /// A task has no queue: its producers come again.
    fn pass_on_work(&self, _id: &TaskId, _owner: &Principal) {}
}
