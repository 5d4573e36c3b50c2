//! The controllers that connect a Service with its pods: EndpointSlices, Endpoints, and the addresses of simulated
//! load balancers.
//!
//! [`slices`] and [`endpoints`] write the same facts in their two API forms. [`backend`] computes these facts,
//! [`watch`] decides which changes may affect them, and [`trigger`] records when the change happened. [`writes`]
//! keeps a controller from deciding twice on the same informer state. [`load_balancer`] gives Services of type
//! LoadBalancer an address, [`ranges`] manages the ServiceCIDRs from which cluster IPs are allocated.
//!
//! Clusters are single-stack: the API server gives every Service one family, so each has slices of one address
//! type. The API server refuses a Service with `RequireDualStack` and gives one with `PreferDualStack` a single
//! family.

mod backend;
pub mod endpoints;
pub mod load_balancer;
pub mod ranges;
pub mod slices;
mod trigger;
mod watch;
mod writes;

use std::sync::Arc;

pub use load_balancer::{ElasticLoadBalancers, LoadBalancers};

use crate::Context;

/// Starts the controllers of Services; `load_balancers` supplies external addresses.
pub fn start(context: &Context, load_balancers: Arc<dyn LoadBalancers>) {
    slices::start(context);
    endpoints::start(context);
    load_balancer::start(context, load_balancers);
    ranges::start(context);
}
