//! The actions that IAM denies the caller of the simulated EC2.
//!
//! Invariant: a denied launch buys nothing. Nodes of node groups are launched by AWS's own role, which is denied nothing.

use std::collections::BTreeSet;

use mullion_api::account;

use super::{SimulatedEc2, State};
use crate::{CloudError, DeniedCall, LaunchCall, LaunchRequest, catalogue};

impl SimulatedEc2 {
    /// Replaces the denied actions, in the form of IAM policies: `ec2:CreateFleet`. Those of a launch ([`LaunchCall`]) have an
    /// effect here; programs that answer other calls ask [`SimulatedEc2::denies`].
    pub fn deny(&self, actions: &[String]) {
        self.state().denied = actions.iter().cloned().collect();
    }

    /// Returns whether an action is denied.
    pub fn denies(&self, action: &str) -> bool {
        self.state().denied.contains(action)
    }

    /// Returns the first call of a launch that is denied.
    ///
    /// # Errors
    /// The call is throttled, or the first option's volumes are smaller than the snapshots of its image: the dry run of RunInstances
    /// looks at them, too.
    pub(super) fn dry_run(
        &self,
        request: &LaunchRequest,
    ) -> Result<Option<DeniedCall>, CloudError> {
        let mut state = self.state();
        if state.faults.is_throttled() {
            return Err(CloudError::Throttled);
        }
        let denied = first_denied(&state.denied);
        let first = request.options.first();
        let first = first.and_then(|option| catalogue::get(&option.instance_type));
        if let (None, Some(instance_type)) = (&denied, first) {
            state.check_volumes(request, instance_type)?;
        }
        Ok(denied)
    }
}

impl State {
    /// Returns an error if a call of this launch is denied.
    pub(super) fn check_permissions(&self, request: &LaunchRequest) -> Result<(), CloudError> {
        let denied = request
            .class
            .as_ref()
            .and_then(|_| first_denied(&self.denied));
        match denied {
            Some(denied) => Err(CloudError::Unauthorized(denied.message)),
            None => Ok(()),
        }
    }
}

fn first_denied(denied: &BTreeSet<String>) -> Option<DeniedCall> {
    let mut calls = LaunchCall::ALL.into_iter();
    let call = calls.find(|call| denied.contains(call.action()))?;
    let (action, id) = (call.action(), account::ID);
    let message = format!(
        "You are not authorized to perform this operation. User: arn:aws:iam::{id}:user/mullion is not authorized to \
         perform: {action} because no identity-based policy allows the {action} action"
    );
    Some(DeniedCall { call, message })
}
