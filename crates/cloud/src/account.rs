//! The parts of an AWS account, besides instances, that EKS's requirements for Windows are about: the cluster's description, IAM roles,
//! access entries, Fargate profiles, AMIs, and free addresses of subnets.
//!
//! [`Account`] is the interface to the calls of EKS, IAM and EC2; [`crate::sim::SimulatedAccount`] implements it with a custom resource.
//! The facts have the types of [`mullion_api::account`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use mullion_api::account::{
    AccessEntry, EksCluster, FargateProfile, Image, InstanceFacts, SubnetFacts,
};

use crate::BoxFuture;

/// The reason why a call to the account failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// The caller may not make the call.
    #[error("AccessDenied: not authorized to perform {0}")]
    Denied(&'static str),
    /// The entity does not exist.
    #[error("NoSuchEntity: {0} cannot be found")]
    NoSuchEntity(String),
    /// The entity exists already.
    #[error("ResourceInUseException: {0} exists already")]
    Exists(String),
}

/// A change of the account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountChange {
    /// Attaches a policy of AWS to a role (iam:AttachRolePolicy).
    AttachPolicy {
        /// Name of the role.
        role: String,
        /// Name of the policy.
        policy: String,
    },
    /// Creates an access entry (eks:CreateAccessEntry).
    CreateAccessEntry {
        /// Name of the cluster.
        cluster: String,
        /// Name of the role.
        role: String,
        /// Type of the entry.
        kind: String,
    },
    /// Deletes an access entry, whose type cannot be changed (eks:DeleteAccessEntry).
    DeleteAccessEntry {
        /// Name of the cluster.
        cluster: String,
        /// Name of the role.
        role: String,
    },
}

/// Formats the change as the AWS CLI command that makes it.
impl fmt::Display for AccountChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AttachPolicy { role, policy } => write!(
                f,
                "aws iam attach-role-policy --role-name {role} --policy-arn arn:aws:iam::aws:policy/{policy}"
            ),
            Self::CreateAccessEntry {
                cluster,
                role,
                kind,
            } => write!(
                f,
                "aws eks create-access-entry --cluster-name {cluster} --principal-arn {} --type {kind}",
                mullion_api::account::role_arn(role)
            ),
            Self::DeleteAccessEntry { cluster, role } => write!(
                f,
                "aws eks delete-access-entry --cluster-name {cluster} --principal-arn {}",
                mullion_api::account::role_arn(role)
            ),
        }
    }
}

/// The instances of a cluster's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instances {
    /// The instances of Windows nodes, by id.
    pub windows: BTreeMap<String, InstanceFacts>,
    /// Names of the instance profiles of Linux nodes.
    pub linux_profiles: BTreeSet<String>,
}

/// An AWS account, as far as EKS's requirements for Windows are about it.
///
/// # Errors
/// Every call may return [`AccountError::Denied`], which names the missing action.
pub trait Account: fmt::Debug + Send + Sync {
    /// Describes the cluster (eks:DescribeCluster).
    fn cluster(&self) -> BoxFuture<'_, Result<EksCluster, AccountError>>;

    /// Returns the names of the policies that are attached to a role (iam:ListAttachedRolePolicies).
    fn attached_policies<'a>(
        &'a self,
        role: &'a str,
    ) -> BoxFuture<'a, Result<Vec<String>, AccountError>>;

    /// Returns the cluster's access entries by the name of their role (eks:ListAccessEntries, eks:DescribeAccessEntry).
    fn access_entries(&self) -> BoxFuture<'_, Result<BTreeMap<String, AccessEntry>, AccountError>>;

    /// Returns the Fargate profiles by name (eks:ListFargateProfiles, eks:DescribeFargateProfile).
    fn fargate_profiles(
        &self,
    ) -> BoxFuture<'_, Result<BTreeMap<String, FargateProfile>, AccountError>>;

    /// Returns the instances of the cluster's nodes (ec2:DescribeInstances).
    fn instances(&self) -> BoxFuture<'_, Result<Instances, AccountError>>;

    /// Returns the name of the role of an instance profile (iam:GetInstanceProfile).
    fn role_of<'a>(&'a self, profile: &'a str) -> BoxFuture<'a, Result<String, AccountError>>;

    /// Returns the subnets by id (ec2:DescribeSubnets, ec2:DescribeNetworkInterfaces).
    fn subnets(&self) -> BoxFuture<'_, Result<BTreeMap<String, SubnetFacts>, AccountError>>;

    /// Returns EKS's Windows AMIs by id (ssm:GetParameter, ec2:DescribeImages).
    fn images(&self) -> BoxFuture<'_, Result<BTreeMap<String, Image>, AccountError>>;

    /// Makes a change.
    fn change<'a>(&'a self, change: &'a AccountChange) -> BoxFuture<'a, Result<(), AccountError>>;
}
