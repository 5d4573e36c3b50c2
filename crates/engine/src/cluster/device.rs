//! Deltas and questions about devices: ResourceClaims, DeviceClasses and the ResourceSlices that drivers publish.

use std::sync::Arc;

use super::undo::Undo;
use super::{Cluster, NodeId};
use crate::class::{PodClass, PodClassId};
use crate::devices::{
    CandidateAllocation, Change, Claim, ClaimConflict, Class, Devices, Failure, Plan, Search,
    Slice, UnallocatedClaim, written,
};
use crate::intern::Symbol;
use crate::model::{
    DeviceChoices, DeviceClassSpec, DeviceJudge, ExtendedClaim, ResourceClaimSpec,
    ResourceSliceSpec,
};
use crate::reason::{Conflict, Plugin};

impl Cluster {
    /// Sets the evaluator of the CEL expressions that select devices. Without one, a pod that needs an expression is refused with an error.
    pub fn judge_devices_by(&mut self, judge: Arc<dyn DeviceJudge>) {
        self.devices.judge_by(judge);
    }

    /// Adds or changes a ResourceClaim.
    pub fn set_resource_claim(&mut self, spec: &ResourceClaimSpec) {
        let namespace = self.names.intern(&spec.namespace);
        let key = (namespace, self.names.intern(&spec.name));
        let claim = Claim::compile(spec, &mut self.names);
        self.change_devices(Change::Claim(key, Some(Box::new(claim))));
    }

    /// Removes a ResourceClaim.
    pub fn remove_resource_claim(&mut self, namespace: &str, name: &str) {
        if let (Some(namespace), Some(name)) = (self.names.find(namespace), self.names.find(name)) {
            self.change_devices(Change::Claim((namespace, name), None));
        }
    }

    /// Removes the claims that stand for the extended resources of a pod, given by its UID, so that the pod looks as if it had never been placed.
    pub fn remove_extended_claims(&mut self, pod: &str) {
        let Some(pod) = self.names.find(pod) else {
            return;
        };
        for key in self.devices.extended_claims_of(pod) {
            self.change_devices(Change::Claim(key, None));
        }
    }

    /// Adds or changes a DeviceClass.
    pub fn set_device_class(&mut self, spec: &DeviceClassSpec) {
        let name = self.names.intern(&spec.name);
        let class = Class::compile(spec, &mut self.names);
        self.change_devices(Change::Class(name, Some(Box::new(class))));
    }

    /// Removes a DeviceClass.
    pub fn remove_device_class(&mut self, name: &str) {
        if let Some(name) = self.names.find(name) {
            self.change_devices(Change::Class(name, None));
        }
    }

    /// Adds or changes a ResourceSlice.
    pub fn set_resource_slice(&mut self, spec: &ResourceSliceSpec) {
        let slice = Slice::compile(spec, &mut self.names);
        self.change_devices(Change::Slice(slice.name.clone(), Some(Box::new(slice))));
    }

    /// Removes a ResourceSlice.
    pub fn remove_resource_slice(&mut self, name: &str) {
        self.change_devices(Change::Slice(name.into(), None));
    }

    pub(super) fn change_devices(&mut self, change: Change) {
        if let Some(inverse) = self.devices.exchange(change) {
            self.log(Undo::Devices(inverse));
        }
    }

    pub(crate) fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Computes the device plan of a class unless the cached plan is current.
    pub(super) fn plan_devices(&mut self, id: PodClassId) {
        let version = self.devices.version();
        let holds = |(made, _): &(u64, Plan)| *made == version;
        // By version and not by object: a plan reads classes, slices and claims alike.
        if !self.device_plans.get(&id).is_some_and(holds) {
            let class = &self.classes[id.index()];
            let plan = Plan::of(class, &mut self.devices, &mut self.names);
            // `Plan::of` can itself change the version, so the version is read after it.
            self.device_plans.insert(id, (self.devices.version(), plan));
        }
    }

    /// Returns whether devices matter to pods of a class and the DynamicResources filter of their profile is on.
    pub fn decides_devices(&self, id: PodClassId) -> bool {
        let class = self.class(id);
        let rules = self.rules(class.shape.profile);
        self.is_about_devices(class) && rules.filters(Plugin::DynamicResources)
    }

    /// Returns whether pods of a class have ResourceClaims, or request extended resources that a DeviceClass stands for at present.
    pub(crate) fn is_about_devices(&self, class: &PodClass) -> bool {
        class.devices.is_some() || self.devices.stand_for(class)
    }

    /// Returns why a pod may not enter the scheduling queue yet: one of its claims does not exist or was made for another pod (kube-scheduler:
    /// DynamicResources' PreEnqueue).
    pub fn claims_missing(&mut self, id: PodClassId) -> Option<Conflict> {
        if !self.decides_devices(id) {
            return None;
        }
        self.plan_devices(id);
        let conflict = self.device_plans[&id].1.conflict?;
        conflict.is_early().then_some(Conflict::Claims(conflict))
    }

    /// Returns the devices to allocate when a pod of this class goes to the node that the engine chose: for its unallocated claims and for its
    /// extended resources (kube-scheduler: DynamicResources' Reserve).
    pub fn device_choices(&mut self, id: PodClassId, node: NodeId) -> DeviceChoices {
        let mut choices = DeviceChoices::default();
        if !self.decides_devices(id) {
            return choices;
        }
        self.plan_devices(id);
        let plan = &self.device_plans[&id].1;
        let site = self.site(node);
        let extended = plan.extended.on(&self.at(node).fixed.allocatable).ok();
        let extended_claim = extended.as_ref().and_then(|own| own.unallocated_claim());
        // The same search succeeded when the node was chosen.
        for found in self.find_devices(plan, node).unwrap_or_default() {
            let Ok(allocation) = found.allocation(site) else {
                continue;
            };
            match (&extended_claim, &extended) {
                (Some(extended_claim), Some(own)) if extended_claim.key == found.key => {
                    choices.extended = Some(ExtendedClaim {
                        requests: written(extended_claim),
                        uses: own.uses(&self.names),
                        allocation,
                    });
                }
                _ => {
                    let claim = self.names.text(found.key.1).to_owned();
                    choices.claims.push((claim, allocation));
                }
            }
        }
        choices
    }

    /// Searches devices on a node for a plan's unallocated claims and for the extended resources that the node itself does not offer.
    pub(crate) fn find_devices<'a>(
        &'a self,
        plan: &'a Plan,
        node: NodeId,
    ) -> Result<Vec<CandidateAllocation<'a>>, Failure> {
        if plan.conflict.is_some() {
            return Err(Failure::NotEnough);
        }
        let wanting = plan.claims.iter().filter(|own| !own.allocated);
        let claims = wanting.filter_map(|own| {
            let claim = self.devices.claim(own.key)?;
            Some(UnallocatedClaim::of(own.key, claim))
        });
        // Where the node lacks a resource altogether, the filter says so; here only devices are looked for.
        let extended = plan.extended.on(&self.at(node).fixed.allocatable).ok();
        let claims = claims.chain(extended.and_then(|own| own.unallocated_claim()));
        Search::run(&self.devices, claims.collect(), self.site(node))
    }

    /// Returns the error that ends the scheduling attempt of a pod of this class. It is the one from the node with the first name among `failing`, so
    /// that the result does not depend on order.
    pub(crate) fn device_error(
        &mut self,
        id: PodClassId,
        failing: impl Iterator<Item = NodeId>,
    ) -> Option<Conflict> {
        let node = failing.min_by(|a, b| self.node_name(*a).cmp(self.node_name(*b)))?;
        self.plan_devices(id);
        let plan = &self.device_plans[&id].1;
        let found = self.find_devices(plan, node);
        let found = found.and_then(|found| {
            let written = found.iter().map(|found| found.allocation(self.site(node)));
            written.collect::<Result<Vec<_>, _>>()
        });
        let Err(Failure::Error(why)) = found else {
            return None;
        };
        let why = self.names.intern(&why);
        Some(Conflict::Claims(ClaimConflict::Failed { why }))
    }

    /// Returns the name of the claim for extended resources that an earlier attempt to place the pod left behind.
    pub(crate) fn left_claim(&mut self, id: PodClassId) -> Option<Symbol> {
        self.plan_devices(id);
        self.device_plans[&id].1.extended.left
    }

    /// Returns the name of a claim that could be deallocated: no other pod has reserved it, and one of `nodes` cannot use the devices it has.
    pub(crate) fn idle_claim(
        &mut self,
        id: PodClassId,
        mut nodes: impl Iterator<Item = NodeId>,
    ) -> Option<Symbol> {
        self.plan_devices(id);
        let plan = &self.device_plans[&id].1;
        nodes.find_map(|node| {
            let mut idle = plan.claims.iter().filter(|own| own.idle);
            let idle = idle.find(|own| !self.devices.is_usable(**own, self.site(node)));
            idle.map(|own| own.key.1)
        })
    }
}
