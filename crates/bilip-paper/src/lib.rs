//! Pictures, and the paper's experiments, of monotone, bi-Lipschitz and Polyak-Łojasiewicz networks.

pub mod plot;
