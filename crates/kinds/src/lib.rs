//! The built-in kinds of Kubernetes: one file per kind, with its defaults, validation, allocation and columns, and one row per served
//! resource ([`builtins()`]).
//!
//! A [`Resource`] says, as data, where a kind is served and how the generic handlers of an API server treat it. Its [`Kind`] has the rest
//! as code, and its rules about single fields as tables (`fields`). Custom resource definitions add such rows at run time. Handlers never
//! name a kind.
//!
//! Hooks of kinds get a [`request::Ctx`]: the user of the request, the other objects, and what the user may do.
//!
//! Layer: above `mullion-schema` and `mullion-cel`. It knows no store, no HTTP and no server.
//!
//! Architecture invariant: no clock, environment, files, network or threads of its own. Whoever asks brings the time and the other objects.

// Each `expect` names the invariant that holds; tests may use `unwrap`.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod addresses;
pub mod admissionregistration;
mod api_resource;
mod apiservices;
mod autoscalers;
mod builtins;
mod certificatesigningrequests;
mod componentstatuses;
mod configmaps;
mod controllerrevisions;
mod cronjobs;
mod csi;
mod csistoragecapacities;
mod daemonsets;
mod deployments;
pub mod devices;
mod endpoints;
mod endpointslices;
mod events;
mod fields;
pub mod flowcontrol;
pub mod ingressclasses;
pub mod ingresses;
mod jobs;
pub mod key_pair;
mod kind;
mod leases;
mod limitranges;
pub mod namespaces;
mod networkpolicies;
mod node_annotations;
mod nodes;
pub mod persistentvolumeclaims;
mod persistentvolumes;
mod poddisruptionbudgets;
mod pods;
pub mod podspec;
mod podtemplates;
pub mod print;
pub mod priorityclasses;
mod provided;
pub mod quota;
pub mod rbac;
mod replicasets;
mod replicationcontrollers;
pub mod request;
mod resource;
mod resourcequotas;
mod rules;
mod runtimeclasses;
mod secrets;
mod serviceaccounts;
pub mod services;
mod statefulsets;
pub mod storageclasses;
mod volumeattachments;
mod volumeattributesclasses;
mod workloads;

/// The schema table, which the types of [`Resource`]s are of.
pub use mullion_schema as schema;

pub use api_resource::{Resource, StatusMetadata, Subresource, SubresourceHandler};
pub use builtins::builtins;
pub use kind::{
    Allocation, Allocator, Check, Column, Companion, Conversion, Deletion, FieldSelection, Kind,
    Nothing, Plain, Printing, Unstored,
};
pub use priorityclasses::system_classes;
pub use provided::{Labels, ObjectQuery, ObjectSource};
pub use rules::{Generation, Propagation, Rules, StatusOnCreate};
pub use services::{InvalidRange, ServiceRange};
