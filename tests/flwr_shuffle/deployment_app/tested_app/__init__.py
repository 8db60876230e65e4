"""A small model for tests of deployments: it writes down what each party saw, and stops on demand."""
