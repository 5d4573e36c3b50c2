//! What makes a Service reach its pods: EndpointSlices, Endpoints, and addresses of simulated load balancers.
//!
//! [`slices`] and [`endpoints`] write the same facts in their two API forms; [`backend`] says what those facts are and
//! [`watch`] when they may have changed and [`trigger`] since when; [`writes`] keeps them from deciding twice on one view.
//! [`load_balancer`] gives Services of type LoadBalancer an address, [`ranges`] keeps the ranges that cluster IPs are from.
//!
//! Clusters are single-stack: the API server gives every Service one family, so each has slices of one address type.
//! A Service that asks for two (`RequireDualStack`) is refused there; one that would like two gets one.

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

/// Starts the controllers of Services; `load_balancers` hands out external addresses.
pub fn start(context: &Context, load_balancers: Arc<dyn LoadBalancers>) {
    slices::start(context);
    endpoints::start(context);
    load_balancer::start(context, load_balancers);
    ranges::start(context);
}
