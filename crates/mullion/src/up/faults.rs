//! Injects the faults of SimulatedFault objects into the simulated EC2: each begins when its object exists, and ends when the object is
//! deleted.
//!
//! Invariant: the faults in effect are those of the objects. Faults of an earlier start are injected again before anything is launched. An
//! object whose instance is gone is deleted, because its fault has no effect any more. The offerings of `--insufficient-capacity` are
//! objects too, for one start of the cluster.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use mullion_api::{
    ami::AmiFamily,
    fault::{
        FaultKind, IN_FORCE, REFUSED, SimulatedFault, SimulatedFaultSpec, SimulatedFaultStatus,
    },
    labels,
};
use mullion_cloud::{
    CloudProvider,
    catalogue::Arch,
    sim::{CapacityPattern, Fault, SimulatedEc2},
};
use mullion_controllers::{Context, Informer, Queue, api_error};
use serde_json::json;

use super::account;
use crate::failure::Failure;

/// The flag of `mullion up` that exhausts offerings from the start.
const FLAG: &str = "--insufficient-capacity";

/// The faults in effect, by the name of their object.
#[derive(Clone)]
pub(super) struct Faults {
    context: Context,
    ec2: SimulatedEc2,
    in_force: Arc<Mutex<BTreeMap<String, ActiveFault>>>,
}

struct ActiveFault {
    /// The uid of the object.
    uid: Option<String>,
    fault: Fault,
}

impl Faults {
    /// Injects again the faults that were in effect when the cluster stopped, and makes objects of the offerings that a flag of this start
    /// exhausts.
    ///
    /// # Errors
    /// The API server refuses an object.
    pub(super) async fn resume(
        context: &Context,
        ec2: &SimulatedEc2,
        exhausted: &[CapacityPattern],
    ) -> Result<Self, Failure> {
        let faults = Self {
            context: context.clone(),
            ec2: ec2.clone(),
            in_force: Arc::default(),
        };
        match faults.api().list(&ListParams::default()).await {
            Ok(found) => {
                let known = faults.resume_all(found.items).await;
                let known = known.map_err(cannot_be_made)?;
                faults
                    .make_all(exhausted, known)
                    .await
                    .map_err(cannot_be_made)?;
            }
            // A cluster made by an earlier version does not have this kind, so nothing lists what the flag exhausts.
            Err(error) if api_error::is_not_found(&error) => {
                let patterns = exhausted.iter().cloned();
                patterns.for_each(|pattern| ec2.exhaust(pattern));
            }
            Err(error) => return Err(cannot_be_made(error)),
        }
        // A crash that was ended while the cluster was down must not leave its instance stopped.
        ec2.start_forgotten();
        Ok(faults)
    }

    /// Injects faults again, and returns their objects; those of an earlier start's flag are deleted.
    async fn resume_all(&self, found: Vec<SimulatedFault>) -> kube::Result<Vec<SimulatedFault>> {
        let mut known = Vec::new();
        for object in found {
            if object.annotations().contains_key(labels::FROM_FLAG) {
                let name = object.name_any();
                let deleted = self.api().delete(&name, &DeleteParams::default()).await;
                api_error::ignore_not_found(deleted)?;
                continue;
            }
            let phase = object.status.as_ref().map_or("", |status| &status.phase);
            if phase == IN_FORCE {
                self.cause(&object);
                known.push(object);
            }
        }
        Ok(known)
    }

    /// Makes the faults of a flag that are not among the known ones: if one fault had two objects, the deletion of one would leave the
    /// other in force.
    async fn make_all(
        &self,
        exhausted: &[CapacityPattern],
        mut known: Vec<SimulatedFault>,
    ) -> kube::Result<()> {
        for pattern in exhausted {
            let is_known = |own: &SimulatedFault| {
                let mut names = own.status.iter().flat_map(|status| &status.names);
                own.spec.fault == FaultKind::Capacity.as_str()
                    && names.any(|name| *name == pattern.to_string())
            };
            if !known.iter().any(is_known) {
                known.push(self.make(pattern).await?);
            }
        }
        Ok(())
    }

    /// Makes the object of a fault that a flag causes, and injects the fault.
    async fn make(&self, pattern: &CapacityPattern) -> kube::Result<SimulatedFault> {
        let mut object = SimulatedFault::new(
            "",
            SimulatedFaultSpec {
                fault: FaultKind::Capacity.as_str().to_owned(),
                target: pattern.to_string(),
            },
        );
        let flag = (labels::FROM_FLAG.to_owned(), FLAG.to_owned());
        object.metadata = ObjectMeta {
            generate_name: Some(format!("{}-", FaultKind::Capacity)),
            annotations: Some(BTreeMap::from([flag])),
            ..ObjectMeta::default()
        };
        let object = self.api().create(&PostParams::default(), &object).await?;
        // The provisioner starts next, so the fault is not left to the loop that follows the objects.
        let patch = Patch::Merge(json!({ "status": self.cause(&object) }));
        let (name, params) = (object.name_any(), PatchParams::default());
        self.api().patch_status(&name, &params, &patch).await
    }

    /// Follows the objects until the context ends.
    pub(super) fn follow(self) {
        let (context, ec2) = (self.context.clone(), self.ec2.clone());
        let (tasks, shutdown) = (context.tasks.clone(), context.shutdown.clone());
        let objects: Informer<SimulatedFault> = Informer::new(self.api(), &[], tasks, shutdown);
        let queue = Queue::new("simulatedfault");
        let names = queue.clone();
        objects.on_change(move |change| names.add(change.object().name_any()));
        objects.start();
        let (names, in_force) = (queue.clone(), Arc::clone(&self.in_force));
        let shutdown = context.shutdown.clone();
        let mut changed = ec2.changed();
        context.tasks.spawn(async move {
            while let Some(Ok(())) = shutdown.run_until_cancelled(changed.changed()).await {
                let names: Vec<String> = locked(&in_force).keys().cloned().collect();
                names.into_iter().for_each(|name| queue.add(name));
            }
        });
        // One worker: faults of one instance or zone must not overtake each other.
        names.run(&context, 1, move |name: String| {
            let faults = self.clone();
            async move { faults.reconcile(&name).await }
        });
    }

    async fn reconcile(&self, name: &str) -> kube::Result<()> {
        let object = self.api().get_opt(name).await?;
        let is_of = |own: &ActiveFault| object.as_ref().is_some_and(|it| it.uid() == own.uid);
        let ended = {
            let mut in_force = locked(&self.in_force);
            let is_other = in_force.get(name).is_some_and(|own| !is_of(own));
            is_other.then(|| in_force.remove(name)).flatten()
        };
        if let Some(ended) = ended {
            self.publish(&ended.fault, true).await?;
            // The call must not be in the macro, which evaluates its arguments only if the level is logged.
            let said = self.ec2.heal(&ended.fault);
            tracing::info!("{said}");
        }
        let Some(object) = object else { return Ok(()) };
        let is_over = locked(&self.in_force)
            .get(name)
            .map(|own| self.ec2.is_over(&own.fault));
        match is_over {
            Some(false) => Ok(()),
            Some(true) => {
                locked(&self.in_force).remove(name);
                let deleted = self.api().delete(name, &DeleteParams::default()).await;
                api_error::ignore_not_found(deleted).map(drop)
            }
            // It was refused before; the user creates another one.
            None if object.status.is_some() => Ok(()),
            None => {
                let status = self.cause(&object);
                tracing::info!("{}", status.message);
                let caused = locked(&self.in_force)
                    .get(name)
                    .map(|own| own.fault.clone());
                if let Some(fault) = caused {
                    self.publish(&fault, false).await?;
                }
                let patch = Patch::Merge(json!({ "status": status }));
                let params = PatchParams::default();
                let patched = self.api().patch_status(name, &params, &patch).await;
                api_error::ignore_not_found(patched).map(drop)
            }
        }
    }

    /// Adds the newest Windows image of a family to the account, or marks it as withdrawn.
    async fn publish(&self, fault: &Fault, withdrawn: bool) -> kube::Result<()> {
        let Fault::NewImage(family @ AmiFamily::Windows(..)) = fault else {
            return Ok(());
        };
        let version = self.ec2.config().version;
        let image = self.ec2.newest_image(*family, version, Arch::Amd64).await;
        match image {
            Ok(image) => account::publish(&self.context.client, &image, withdrawn).await,
            // The simulated EC2 always returns an image.
            Err(_) => Ok(()),
        }
    }

    /// Injects the fault of an object, if possible.
    fn cause(&self, object: &SimulatedFault) -> SimulatedFaultStatus {
        let refused = |message: String, near| SimulatedFaultStatus {
            phase: REFUSED.to_owned(),
            message,
            near,
            ..SimulatedFaultStatus::default()
        };
        let kind = match object.spec.fault.parse::<FaultKind>() {
            Ok(kind) => kind,
            Err(why) => return refused(why.to_string(), Vec::new()),
        };
        let fault = match self.ec2.fault(kind, &object.spec.target) {
            Ok(fault) => fault,
            Err(error) => return refused(error.message, error.near),
        };
        let message = self.ec2.cause(&fault);
        let names = self.ec2.names(&fault);
        let uid = object.uid();
        let own = ActiveFault { uid, fault };
        locked(&self.in_force).insert(object.name_any(), own);
        SimulatedFaultStatus {
            phase: IN_FORCE.to_owned(),
            message,
            names,
            near: Vec::new(),
        }
    }

    fn api(&self) -> Api<SimulatedFault> {
        Api::all(self.context.client.clone())
    }
}

fn cannot_be_made(error: kube::Error) -> Failure {
    Failure::run(format!("the faults of {FLAG} cannot be made: {error}"))
}

fn locked(
    in_force: &Mutex<BTreeMap<String, ActiveFault>>,
) -> MutexGuard<'_, BTreeMap<String, ActiveFault>> {
    in_force.lock().unwrap_or_else(PoisonError::into_inner)
}
