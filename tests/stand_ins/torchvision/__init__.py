"""In place of torchvision, for scripts of others: it replaces a download of pictures, and nothing else.

Pictures are scikit-learn's digits, or drawn. A build of torchvision for PyTorch without a GPU is not in the
package index, and no data can be fetched while tests run.
"""
