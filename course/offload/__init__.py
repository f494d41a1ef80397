"""The lesson on activation offloading: its graphs, model and exercise."""
