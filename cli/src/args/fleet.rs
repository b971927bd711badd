//! The options of `memtrack fleet`.
//!
//! Invariant: a query that compares two releases has both.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Colors;

/// `memtrack fleet`.
#[derive(Debug, Args)]
pub(crate) struct FleetArgs {
    /// The directory of tables, as written by 'memtrack transform parquet -o DIR'
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// What is asked
    #[arg(value_name = "QUERY", value_enum, default_value_t = FleetQuery::Growth)]
    pub(crate) query: FleetQuery,
    /// regression: the release that is compared with (as named by 'memtrack transform parquet --release')
    #[arg(long, value_name = "RELEASE", required_if_eq("query", "regression"))]
    pub(crate) before: Option<String>,
    /// regression: the release that is compared
    #[arg(long, value_name = "RELEASE", required_if_eq("query", "regression"))]
    pub(crate) after: Option<String>,
    /// Print the query in SQL, with the views that it needs, for DuckDB; in Spark the tables have the same names
    #[arg(long)]
    pub(crate) sql: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "sql")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) colors: Colors,
}

/// The queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FleetQuery {
    /// Which lines of own code hold more and more memory, over all hosts
    Growth,
    /// Which lines of own code hold more in one release than in another
    Regression,
    /// What processes of each release leak, and how fast they grow
    Leaks,
    /// How high the processes of each service peak
    Peaks,
}
