//! Collects what the doctor knows about the AWS account: each fact, or the call that was missing for it.
//!
//! The account is asked through [`Account`]. Today there is one kind of account, that of an embedded cluster: the custom resource
//! SimulatedAccount `aws`. Without one, every fact is unknown and names its call.

use std::collections::BTreeMap;

use http::Method;
use kube::Client;
use mullion_api::account::{
    AccessEntry, EksCluster, FargateProfile, Image, NAME, SimulatedAccountSpec,
    SimulatedAccountStatus, SubnetFacts,
};
use mullion_cloud::{Account, AccountChange, AccountError, Instances, sim::SimulatedAccount};
use serde::Deserialize;
use serde_json::Value;

use super::{change::ChangeError, kinds::kind, request, snapshot::Unknown};

/// How often a change is retried after another client changed the account at the same time.
const TRIES: usize = 5;

/// A fact about the account, or the call that was missing for it.
type Fact<T> = Result<T, Unknown>;

/// The facts about the AWS account; each may be unknown.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) cluster: Fact<EksCluster>,
    /// The names of the policies that the cluster's role has.
    pub(super) policies: Fact<Vec<String>>,
    /// The access entries, by the name of the role.
    pub(super) entries: Fact<BTreeMap<String, AccessEntry>>,
    pub(super) fargate: Fact<BTreeMap<String, FargateProfile>>,
    pub(super) instances: Fact<Instances>,
    /// The roles, by the name of the instance profile.
    pub(super) roles: Fact<BTreeMap<String, String>>,
    pub(super) subnets: Fact<BTreeMap<String, SubnetFacts>>,
    pub(super) images: Fact<BTreeMap<String, Image>>,
}

impl Default for Facts {
    fn default() -> Self {
        fn none<T>(call: &str) -> Fact<T> {
            Err(Unknown(format!(
                "{call} (no AWS account is known; this version asks simulated ones only)"
            )))
        }
        Facts {
            cluster: none("eks:DescribeCluster"),
            policies: none("iam:ListAttachedRolePolicies"),
            entries: none("eks:ListAccessEntries"),
            fargate: none("eks:DescribeFargateProfile"),
            instances: none("ec2:DescribeInstances"),
            roles: none("iam:GetInstanceProfile"),
            subnets: none("ec2:DescribeSubnets"),
            images: none("ec2:DescribeImages"),
        }
    }
}

impl From<AccountError> for Unknown {
    fn from(error: AccountError) -> Self {
        match error {
            AccountError::Denied(action) => Unknown(action.to_owned()),
            error => Unknown(format!("an answer of AWS other than {error}")),
        }
    }
}

/// Asks an account for all facts.
pub(super) async fn ask(account: &dyn Account) -> Facts {
    let cluster = account.cluster().await.map_err(Unknown::from);
    let policies = match &cluster {
        Ok(cluster) => account.attached_policies(&cluster.role).await,
        Err(unknown) => {
            let unknown = unknown.clone();
            return Facts {
                policies: Err(unknown.clone()),
                cluster: Err(unknown),
                ..rest(account).await
            };
        }
    };
    Facts {
        cluster,
        policies: policies.map_err(Unknown::from),
        ..rest(account).await
    }
}

/// Asks the account for the facts that are not part of EKS's description of the cluster.
async fn rest(account: &dyn Account) -> Facts {
    let instances = account.instances().await.map_err(Unknown::from);
    let roles = match &instances {
        Ok(instances) => roles(account, instances).await,
        Err(unknown) => Err(unknown.clone()),
    };
    Facts {
        entries: account.access_entries().await.map_err(Unknown::from),
        fargate: account.fargate_profiles().await.map_err(Unknown::from),
        instances,
        roles,
        subnets: account.subnets().await.map_err(Unknown::from),
        images: account.images().await.map_err(Unknown::from),
        ..Facts::default()
    }
}

async fn roles(account: &dyn Account, instances: &Instances) -> Fact<BTreeMap<String, String>> {
    let windows = instances.windows.values().map(|own| &own.instance_profile);
    let mut roles = BTreeMap::new();
    for profile in windows.chain(&instances.linux_profiles) {
        // Nodes of one group share their profile, so each is asked about once.
        if !roles.contains_key(profile) {
            let role = account.role_of(profile).await?;
            roles.insert(profile.clone(), role);
        }
    }
    Ok(roles)
}

/// Returns the simulated account that a custom resource describes.
pub(super) fn simulated(object: &Value) -> Result<SimulatedAccount, serde_json::Error> {
    let spec = SimulatedAccountSpec::deserialize(&object["spec"])?;
    let status = match &object["status"] {
        Value::Null => SimulatedAccountStatus::default(),
        status => SimulatedAccountStatus::deserialize(status)?,
    };
    Ok(SimulatedAccount::new(spec, status))
}

/// Changes the simulated account.
///
/// # Errors
/// The change was refused.
pub(super) async fn change(client: &Client, change: &AccountChange) -> Result<(), ChangeError> {
    let path = format!("{}/{NAME}", kind("SimulatedAccount").collection(""));
    for _ in 0..TRIES {
        let read = request::send(client, Method::GET, &path, None).await;
        let mut object = read.map_err(ChangeError::Request)?;
        let account = simulated(&object).map_err(ChangeError::Form)?;
        let changed = account.change(change).await;
        changed.map_err(ChangeError::Account)?;
        object["spec"] = serde_json::to_value(account.spec()).map_err(ChangeError::Form)?;
        match request::send(client, Method::PUT, &path, Some(&object)).await {
            Ok(_) => return Ok(()),
            // Another client has changed the account meanwhile, so the change is applied to the new state.
            Err(refused) if refused.code == 409 => {}
            Err(refused) => return Err(ChangeError::Request(refused)),
        }
    }
    Err(ChangeError::Contended)
}
